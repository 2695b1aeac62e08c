{const fs=require("fs"),read=(n)=>{let b=Buffer.alloc(n),a=0;while(a<n){let k;try{k=fs.readSync(3,b,a,n-a,null)}catch(e){if(e.code==="EAGAIN")continue;throw e}
if(!k)process.exit(0);a+=k}return b};const hello=JSON.parse(read(parseInt(read(8).toString(),16)).toString());
(new Function("require","process","return ("+hello.kernel+"\n)"))(require,process)(hello)}
